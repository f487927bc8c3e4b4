/** What the demo and its worker processes tell each other. */
export interface WorkerArguments {
  readonly pool: string;
  /** The folder that may be read. */
  readonly root: string;
  readonly reportsDir: string;
  readonly logFile: string;
}

export type WorkerMessage =
  | { readonly type: "ready"; readonly workerId: string }
  /** The warning about a transcript that grows without compaction. */
  | { readonly type: "growth_warning"; readonly runId: string; readonly text: string }
  | { readonly type: "failed"; readonly message: string };
