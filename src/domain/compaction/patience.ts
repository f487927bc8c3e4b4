/** How long a task may wait for its quota in all: a day's quota comes back; a run at its hard line prunes after less, or is told. */
export const MAX_QUOTA_WAIT_MS = 25 * 3_600_000;
export const MAX_QUOTA_WAIT_HARD_MS = 15 * 60_000;
