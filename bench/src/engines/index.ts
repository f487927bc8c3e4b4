import { capstan } from "./capstan.ts";
import { dbos } from "./dbos.ts";
import type { Engine } from "./engine.ts";
import { graphile } from "./graphile.ts";
import { langgraph } from "./langgraph.ts";
import { openworkflow } from "./openworkflow.ts";

/** In the order of the tables. `--only ours` takes both of ours. */
export const engines = {
  "ours-one-job": capstan("one-job"),
  "ours-sticky": capstan("sticky"),
  dbos,
  openworkflow,
  langgraph,
  gw: graphile,
} satisfies Record<string, Engine>;

export type EngineName = keyof typeof engines;
export const engineNames = Object.keys(engines) as EngineName[];

/** "ours,dbos" to names. Throws on one that does not exist. */
export function pickEngines(list: string | undefined): EngineName[] {
  if (list === undefined) return engineNames;
  const wanted = list.split(",").flatMap((word) => (word === "ours" ? ["ours-one-job", "ours-sticky"] : [word]));
  const strange = wanted.filter((word) => !engineNames.some((name) => name === word));
  if (strange.length > 0) throw new Error(`--only: ${strange.join(", ")} is no engine; there are ours, ${engineNames.join(", ")}`);
  return engineNames.filter((name) => wanted.includes(name));
}
