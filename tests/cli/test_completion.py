import shutil
import subprocess

import pytest

# Calls the completion function as bash does: command, word to complete.
COMPLETE = """{script}
COMP_WORDS=(endx {words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_endx endx "${{COMP_WORDS[$COMP_CWORD]}}"
echo "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script():
    import contextlib
    import io

    from endx_jax.cli import completion

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        completion.main(["bash"])
    return shown.getvalue()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pu", "push publish"),
        ("serve --max-b", "--max-body"),
        ("train --config.optimizer.learn", "--config.optimizer.learning_rate"),
        ("plan --config=minilm --config.train.global", "--config.train.global_batch_size"),
        ("serve --workdir runs", ""),  # a file
    ],
)
def test_verbs_and_flags_are_completed(words, expected, script):
    text = COMPLETE.format(script=script, words=words)
    found = subprocess.run(["bash", "-c", text], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == expected


def test_zsh_has_the_same_script(endx, script):
    assert endx("completion", "zsh").out == script
