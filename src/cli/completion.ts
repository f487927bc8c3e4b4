import type { Command } from "commander";
import { addCommand } from "./command.ts";
import { usageError } from "./exit.ts";

export function addCompletion(program: Command): void {
  addCommand(program, "completion", {
    summary: "print a completion script for bash or zsh",
    examples: ["completion bash > /etc/bash_completion.d/capstan", 'completion zsh > "${fpath[1]}/_capstan"'],
  })
    .argument("<shell>", "bash or zsh")
    .action((shell: string, { json }: { json?: boolean }) => {
      if (shell !== "bash" && shell !== "zsh") throw usageError(`no completion for ${shell}: give bash or zsh`);
      const script = completionScript(program, shell);
      process.stdout.write(json === true ? `${JSON.stringify({ shell, script })}\n` : script);
    });
}

/** Words by what stands before them, taken from the commands themselves: the script needs no process per key press. */
export function completionScript(program: Command, shell: "bash" | "zsh"): string {
  const groups = program.commands.filter((command) => command.commands.length > 0);
  const bash = `_capstan() {
  local current="\${COMP_WORDS[COMP_CWORD]}" first="" second="" word words=""
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$word" in
      -*) ;;
      *) if [ -z "$first" ]; then first="$word"; elif [ -z "$second" ]; then second="$word"; fi ;;
    esac
  done
  case "$first" in ${groups.map((group) => group.name()).join("|")}) ;; *) second="" ;; esac
  case "$first $second" in
    " ") words="${wordsOf(program)}" ;;
${program.commands.flatMap((command) => casesOf(command)).join("\n")}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _capstan capstan
`;
  return shell === "bash" ? bash : `#compdef capstan\nautoload -U +X bashcompinit && bashcompinit\n${bash}`;
}

function casesOf(command: Command): string[] {
  const name = command.name();
  return [`    "${name} ") words="${wordsOf(command)}" ;;`, ...command.commands.map((sub) => `    "${name} ${sub.name()}") words="${wordsOf(sub)}" ;;`)];
}

function wordsOf(command: Command): string {
  const flags = command.options.flatMap(({ long }) => (typeof long === "string" ? [long] : []));
  return [...command.commands.map((sub) => sub.name()), ...flags, "--help"].join(" ");
}
