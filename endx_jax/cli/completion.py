"""`endx completion`: prints a script that completes verbs and flags, for a file that ~/.bashrc or ~/.zshrc sources."""

import argparse
import contextlib
import io
import re

from endx_jax.cli.entry import VERBS, run_verb

SCRIPT = """[ -n "$ZSH_VERSION" ] && autoload -Uz compinit bashcompinit && compinit && bashcompinit
_endx() {{
  if [ "$COMP_CWORD" -gt 1 ] && [ "${{2#-}}" = "$2" ]; then return; fi  # a value, such as a file
  case "${{COMP_WORDS[1]}}" in
{cases}
    *) COMPREPLY=($(compgen -W "{verbs}" -- "$2")) ;;
  esac
}}
complete -o default -F _endx endx"""


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="endx completion", description=__doc__.partition(": ")[2])
    parser.add_argument("shell", choices=("bash", "zsh"))
    parser.parse_args(argv)
    helps = {verb: io.StringIO() for verb in VERBS}
    for verb, shown in helps.items():
        for each in (verb, "train") if verb == "plan" else (verb,):
            with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
                run_verb([each, "--help"])
    found = {verb: re.findall(r"(?<![\w-])--[a-z][a-z0-9_.-]*(?![\w.-])", helps[verb].getvalue()) for verb in VERBS}
    words = {verb: " ".join(sorted(set(flags))) for verb, flags in found.items()}
    cases = [f'    {verb}) COMPREPLY=($(compgen -W "{words[verb]}" -- "$2")) ;;' for verb in VERBS]
    print(SCRIPT.format(cases="\n".join(cases), verbs=" ".join(VERBS)))
