import { fork } from "node:child_process";

export type ChildOutcome<T> = { readonly ok: true; readonly value: T } | { readonly ok: false; readonly error: string };

export interface ChildOptions {
  /** For node, e.g. --cpu-prof. */
  readonly execArgv?: readonly string[];
  readonly killAfterMs: number;
}

/** Runs a file in a process of its own, with one JSON argument; `answer` in that file sends the result. */
export function inChild<T>(file: URL, request: unknown, { execArgv = [], killAfterMs }: ChildOptions): Promise<ChildOutcome<T>> {
  return new Promise((resolve) => {
    const child = fork(file, [JSON.stringify(request)], {
      execArgv: ["--no-deprecation", "--disable-warning=ExperimentalWarning", ...execArgv],
      stdio: ["ignore", "ignore", "pipe", "ipc"],
    });
    let outcome: ChildOutcome<T> | undefined;
    let noise = "";
    child.stderr?.on("data", (chunk: Buffer) => {
      if (noise.length < 4_000) noise += chunk.toString("utf8");
    });
    child.on("message", (message) => {
      outcome = message as ChildOutcome<T>;
    });
    const timer = setTimeout(() => child.kill("SIGKILL"), killAfterMs);
    child.on("exit", (code, signal) => {
      clearTimeout(timer);
      if (noise !== "") console.error(`  ${noise.trim().slice(0, 2_000).replaceAll("\n", "\n  ")}`);
      resolve(outcome ?? { ok: false, error: `the process ended with ${signal ?? code} and no result${signal === "SIGKILL" ? ` (killed after ${killAfterMs} ms)` : ""}` });
    });
  });
}

/** For the child: does the work, sends the outcome and ends the process, since some peers leave timers behind. */
export async function answer<Request, T>(work: (request: Request) => Promise<T>): Promise<never> {
  // Our parent is gone, and the database with it: an engine that survives such a thing would go on for ever.
  process.once("disconnect", () => process.exit(1));
  let outcome: ChildOutcome<T>;
  try {
    outcome = { ok: true, value: await work(JSON.parse(process.argv[2] ?? "{}") as Request) };
  } catch (error) {
    outcome = { ok: false, error: error instanceof Error ? (error.stack ?? error.message) : String(error) };
  }
  const send = process.send?.bind(process);
  if (send === undefined) console.log(JSON.stringify(outcome, null, 1));
  else await new Promise((resolve) => send(outcome, resolve));
  process.exit(outcome.ok ? 0 : 1);
}
