/** graphile-worker's log lines, brought to ours: its info and debug are our debug, since it reports every job. */
import { Logger } from "graphile-worker";

export interface QueueLog {
  debug(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

export function queueLogger(log?: QueueLog): Logger {
  return new Logger(() => (level, message, meta) => {
    if (log === undefined) return;
    const fields = { source: "graphile-worker", ...(meta === undefined ? {} : { meta }) };
    if (level === "error") log.error(fields, message);
    // Its advice of as many connections as slots is for queues whose tasks hold one: ours share a few.
    else if (level === "warning" && !message.includes("maxPoolSize")) log.warn(fields, message);
    else log.debug(fields, message);
  });
}
