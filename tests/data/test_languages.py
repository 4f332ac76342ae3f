import pytest

from endx_jax.data.languages import detect

TEXTS = {
    "arabic": ["كيف أغير كلمة المرور؟"],
    "chinese": ["如何重置密码？"],
    "english": ["How do I reset my password?"],
    "finnish": ["Miten vaihdan salasanan?", "Avaa asetukset ja napsauta painiketta, jos se ei ole auki."],
    "french": ["Comment puis-je changer le mot de passe ?", "Ouvrez les paramètres et cliquez sur le bouton."],
    "german": ["Wie kann ich mein Passwort zurücksetzen?", "Öffnen Sie die Einstellungen und klicken Sie darauf."],
    "greek": ["Πώς αλλάζω τον κωδικό;"],
    "hebrew": ["איך משנים סיסמה?"],
    "hindi": ["मैं अपना पासवर्ड कैसे बदलूँ?"],
    "japanese": ["パスワードを忘れました。", "Windows の設定画面で再設定できます。"],
    "korean": ["비밀번호를 어떻게 바꾸나요?"],
    "marathi": ["सांकेतिक शब्द कसा बदलायचा?", "कृपया नवीन खाते तयार करा."],
    "polish": ["Jak mogę zmienić hasło?", "Otwórz ustawienia i kliknij na przycisk w menu."],
    "russian": ["Как сбросить пароль?", "Откройте настройки и нажмите на кнопку."],
    "thai": ["เปลี่ยนรหัสผ่านอย่างไร"],
    "turkish": ["Şifremi nasıl değiştirebilirim?", "Ayarları açın ve bir düğmeye basın, bu çok kolay."],
    "ukrainian": ["Введіть пароль ще раз, щоб підтвердити."],
    "vietnamese": ["Làm thế nào để đổi mật khẩu?", "Mở phần cài đặt và nhấn vào nút này."],
}
CODE = ["for (int i = 0; i < n; i++) { s += a[i]; }", "int a, s, z, o; do { s += a; } while (z < s);"]
BOOK = ["the history of 北京 and of 東京 in a book"]


@pytest.mark.parametrize("language", TEXTS)
def test_languages_are_detected(language):
    assert detect(TEXTS[language]) == language
    assert detect(TEXTS[language] * 2000) == language


@pytest.mark.parametrize("texts", [[], [""], ["Settings", "C++ 3.14"], ["de la"], BOOK, CODE])
def test_english_is_assumed_where_little_is_known(texts):
    assert detect(texts) == "english"
