/** The demo's worker processes: starts them, kills one on purpose, and leaves none behind. */
import { join } from "node:path";
import { WorkerChild, type WorkerChildOptions } from "./worker-child.ts";

interface Member {
  readonly child: WorkerChild;
  readonly id: string;
  readonly name: string;
}

export class Fleet {
  readonly #options: Omit<WorkerChildOptions, "logFile">;
  readonly #logsDir: string;
  readonly #children: WorkerChild[] = [];
  readonly #members: Member[] = [];
  #isClosed = false;

  constructor(options: Omit<WorkerChildOptions, "logFile">, logsDir: string) {
    this.#options = options;
    this.#logsDir = logsDir;
  }

  /** Resolves when all take jobs. Throws DEMO_WORKER_FAILED. */
  async start(count: number): Promise<void> {
    if (this.#isClosed) return;
    const starting = Array.from({ length: count }, () => {
      const name = String.fromCharCode(65 + (this.#children.length % 26));
      const child = new WorkerChild({ ...this.#options, logFile: join(this.#logsDir, `demo-worker-${name}.log`) });
      this.#children.push(child);
      return child.ready().then((id) => this.#members.push({ child, id, name }));
    });
    await Promise.all(starting);
  }

  get running(): readonly Member[] {
    return this.#members.filter(({ child }) => child.isRunning);
  }

  nameOf(workerId: string): string {
    return this.#members.find(({ id }) => id === workerId)?.name ?? "?";
  }

  killAtOnce(): void {
    for (const child of this.#children) child.killAtOnce();
  }

  async stop(): Promise<void> {
    this.#isClosed = true;
    await Promise.all(this.#children.map((child) => child.stop()));
  }
}
