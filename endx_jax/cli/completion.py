"""`endx completion`: prints a script that completes verbs and flags in bash or zsh.

Put `source <(endx completion bash)` into ~/.bashrc, or `source <(endx completion zsh)` into ~/.zshrc.
"""

import argparse
import contextlib
import io
import re

ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
SCRIPT = """_endx() {{
  if [ "$COMP_CWORD" -gt 1 ] && [ "${{2#-}}" = "$2" ]; then return; fi  # a value, such as a file
  case "${{COMP_WORDS[1]}}" in
{cases}
    *) COMPREPLY=($(compgen -W "{verbs}" -- "$2")) ;;
  esac
}}
complete -o default -F _endx endx"""


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="endx completion", description=__doc__.partition(": ")[2].replace("\n", " "))
    parser.add_argument("shell", choices=("bash", "zsh"))
    shell = parser.parse_args(argv).shell

    from endx_jax.cli.entry import VERBS, run_verb

    flags = {}
    for verb in VERBS:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            run_verb([verb, "--help"])
        flags[verb] = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_.-]*(?![\w.-])", shown.getvalue()))
    flags["plan"] |= flags["train"]
    words = {verb: " ".join(sorted(found)) for verb, found in flags.items()}
    cases = "\n".join(f'    {verb}) COMPREPLY=($(compgen -W "{words[verb]}" -- "$2")) ;;' for verb in VERBS)
    print(ZSH * (shell == "zsh") + SCRIPT.format(cases=cases, verbs=" ".join(VERBS)))
