import { spawn } from "node:child_process";

/** The operating system user that a server runs as, when it is not the one that runs us. */
export interface OsIdentity {
  readonly uid: number;
  readonly gid: number;
}

export interface CommandResult {
  /** null when a signal ended it */
  readonly exitCode: number | null;
  /** standard output and standard error in the order of arrival */
  readonly lines: readonly string[];
}

export interface CommandOptions {
  readonly identity?: OsIdentity | undefined;
  onLog?: ((line: string) => void) | undefined;
}

/** Rejects only when the program cannot be spawned at all (`ENOENT`, `EACCES`, `EPERM`). */
export function runCommand(file: string, args: readonly string[], options: CommandOptions = {}): Promise<CommandResult> {
  return new Promise((resolve, reject) => {
    const child = spawn(file, args, {
      ...(options.identity && { uid: options.identity.uid, gid: options.identity.gid }),
      // The caller's folder may be closed to the other user, and initdb and pg_ctl ask for their working directory.
      cwd: "/",
      env: serverEnvironment(),
      stdio: ["ignore", "pipe", "pipe"],
    });
    const lines: string[] = [];
    const collect = lineSplitter((line) => {
      lines.push(line);
      options.onLog?.(line);
    });
    child.stdout.setEncoding("utf8").on("data", collect.push);
    child.stderr.setEncoding("utf8").on("data", collect.push);
    child.once("error", reject);
    child.once("close", (exitCode) => {
      collect.end();
      resolve({ exitCode, lines });
    });
  });
}

/**
 * PGPORT, PGDATA, PGOPTIONS and their like in a developer's shell would reach the server and win over our settings.
 * Messages stay English, since a few are matched (address in use, invalid locale).
 */
function serverEnvironment(): NodeJS.ProcessEnv {
  const kept = Object.entries(process.env).filter(([name]) => !name.startsWith("PG"));
  return { ...Object.fromEntries(kept), LC_ALL: "C" };
}

function lineSplitter(onLine: (line: string) => void): { push(chunk: string): void; end(): void } {
  let rest = "";
  return {
    push(chunk) {
      const parts = (rest + chunk).split("\n");
      rest = parts.pop() ?? "";
      for (const part of parts) if (part.trim() !== "") onLine(part.trimEnd());
    },
    end() {
      if (rest.trim() !== "") onLine(rest.trimEnd());
      rest = "";
    },
  };
}
