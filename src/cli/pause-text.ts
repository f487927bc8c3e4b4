/** Pauses in words for people. Pure. */
import type { PauseView } from "../client/pauses.ts";
import { age } from "./format.ts";
import { brief, printable } from "./output.ts";

export function scopeText({ tenant }: Pick<PauseView, "tenant">): string {
  return tenant === undefined ? "everything" : `tenant ${printable(tenant)}`;
}

export function resumeCommand({ tenant }: Pick<PauseView, "tenant">): string {
  return tenant === undefined ? "capstan resume" : `capstan resume --tenant ${printable(tenant)}`;
}

/** `everything is paused since 2026-… (3m), by ann: too much`. */
export function pauseFact(pause: PauseView): string {
  const { at, actor, reason } = pause;
  return `${scopeText(pause)} is paused since ${at} (${age(at)})${actor === undefined ? "" : `, by ${printable(actor)}`}${reason === undefined ? "" : `: ${brief(reason, 200)}`}`;
}

export function pauseText(pause: PauseView): string {
  return `${pauseFact(pause)}; to go on: ${resumeCommand(pause)}`;
}

/** Those under which a run of this tenant stands still. */
export function pausesOf(pauses: readonly PauseView[], tenants: ReadonlySet<string>): PauseView[] {
  return pauses.filter(({ tenant }) => tenant === undefined || tenants.has(tenant));
}
