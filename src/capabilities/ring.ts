/**
 * The one place through which every model call and tool passes. Today it meters; grant, quota and guard take their
 * places before `execute` here and nowhere else.
 */
import type { Effect, EffectReport, EffectRing } from "../engine/ports.ts";

export type Meter = (effect: Effect, report: EffectReport) => void;

export function createRing({ meter, clockMs }: { readonly meter: Meter; readonly clockMs: () => number }): EffectRing {
  return {
    async perform(effect, execute, report) {
      const startedMs = clockMs();
      try {
        const result = await execute();
        meter(effect, { ...report(result), durationMs: clockMs() - startedMs });
        return result;
      } catch (error) {
        meter(effect, { outcome: "threw", durationMs: clockMs() - startedMs });
        throw error;
      }
    },
  };
}
