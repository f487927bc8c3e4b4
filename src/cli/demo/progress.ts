/** How the demo shows what goes on: a block that is redrawn on a terminal, plain lines anywhere else. Standard error only. */
import pc from "picocolors";
import { bytes } from "../format.ts";
import { tableLines, type Column } from "../table.ts";
import type { RunRow } from "./run-rows.ts";

const LINE_EVERY_MS = 5_000;
const endStates = new Set(["completed", "failed", "cancelled"]);

export function isEnded(row: RunRow): boolean {
  return endStates.has(row.state);
}

export interface ProgressOptions {
  readonly stream: NodeJS.WriteStream;
  /** What each run looks at, by its id. */
  readonly folderOf: (runId: string) => string;
  /** A short name for a worker, such as `A`. */
  readonly workerName: (workerId: string) => string;
}

export class Progress {
  readonly #options: ProgressOptions;
  readonly #startedMs = performance.now();
  #drawn = 0;
  #rows: readonly RunRow[] = [];
  #saidMs = 0;

  constructor(options: ProgressOptions) {
    this.#options = options;
  }

  update(rows: readonly RunRow[]): void {
    const isFirst = this.#rows.length === 0;
    this.#rows = rows;
    if (this.#options.stream.isTTY) return this.#redraw();
    const now = performance.now();
    if (!isFirst && now - this.#saidMs < LINE_EVERY_MS) return;
    this.#saidMs = now;
    const turns = rows.reduce((sum, row) => sum + row.turn, 0);
    const ended = rows.filter(isEnded).length;
    this.#write(`${this.#elapsed()}  ${turns} turns, ${bytes(rows.reduce((sum, row) => sum + row.journalBytes, 0))} of journal, ${ended} of ${rows.length} runs ended`);
  }

  /** A line that stays. */
  note(text: string): void {
    this.#erase();
    this.#write(`${this.#elapsed()}  ${text}`);
    if (this.#options.stream.isTTY && this.#rows.length > 0) this.#redraw();
  }

  /** Leaves the last state of the block on the screen. */
  end(): void {
    this.#drawn = 0;
    this.#rows = [];
  }

  #redraw(): void {
    this.#erase();
    const lines = tableLines(this.#columns(), this.#rows, pc.dim).map((line) => line.slice(0, Math.max(20, (this.#options.stream.columns ?? 80) - 1)));
    for (const line of lines) this.#write(line);
    this.#drawn = lines.length;
  }

  #columns(): Column<RunRow>[] {
    const { folderOf, workerName } = this.#options;
    return [
      { title: "folder", value: ({ id }) => folderOf(id) },
      { title: "state", value: ({ state }) => state.padEnd(9) },
      { title: "worker", value: ({ workerId }) => (workerId === null ? "-" : workerName(workerId)) },
      { title: "turn", align: "right", value: ({ turn }) => String(turn) },
      { title: "events", align: "right", value: ({ events }) => String(events) },
      { title: "transcript", align: "right", value: ({ transcriptBytes }) => bytes(transcriptBytes) },
    ];
  }

  #erase(): void {
    if (this.#drawn > 0) this.#options.stream.write(`\u001b[${this.#drawn}A\u001b[0J`);
    this.#drawn = 0;
  }

  #write(line: string): void {
    this.#options.stream.write(`${line}\n`);
  }

  #elapsed(): string {
    return `${((performance.now() - this.#startedMs) / 1_000).toFixed(1).padStart(5)} s`;
  }
}
