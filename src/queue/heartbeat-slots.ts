/** Places in the memory that a worker's main thread shares with its heartbeat thread. Milliseconds since the epoch, or counts. */
export const TICKS = 0;
export const BUSY = 1;
export const BEAT_AT = 2;
export const GAPLESS_SINCE = 3;
export const SLOT_COUNT = 4;
