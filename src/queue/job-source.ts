/** What gives a worker's runner its jobs: the relay of runs, or that of compaction tasks. */
export interface JobSource {
  start(): void;
  stop(): Promise<void>;
  /** There may be something now. */
  poke(): void;
  /** A job that was dispatched here has begun: `id` names its run or task. */
  jobStarted(id: string): void;
}
