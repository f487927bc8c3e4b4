/** A bar on standard error, for people at a terminal only. */
export interface Progress {
  update(done: number): void;
  stop(): void;
}

const silent: Progress = { update() {}, stop() {} };

export async function startProgress(what: string, total: number): Promise<Progress> {
  if (!process.stderr.isTTY || total < 2) return silent;
  const { default: cliProgress } = await import("cli-progress");
  const bar = new cliProgress.SingleBar(
    { format: `${what} [{bar}] {value}/{total}, {eta_formatted} left`, stream: process.stderr, hideCursor: true, clearOnComplete: true },
    cliProgress.Presets.legacy,
  );
  bar.start(total, 0);
  return { update: (done) => bar.update(done), stop: () => bar.stop() };
}
