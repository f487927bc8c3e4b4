/** Models of the provider `offline`: no network, no key, no language model. */
import { EXTRACTIVE_MODEL } from "../../domain/compaction/extract.ts";
import type { Model } from "../../engine/model-port.ts";
import { ModelConfigError } from "../model-config-error.ts";
import { AUDITOR_MODEL, offlineAuditor } from "./auditor.ts";
import { offlineExtractive } from "./extractive.ts";
import type { Recording } from "./recording.ts";
import { offlineReplay, REPLAY_PREFIX } from "./replay.ts";

const MAX_THINK_MS = 600_000;

export interface OfflineModelsOptions {
  /** CAPSTAN_OFFLINE_THINK_MS: milliseconds that each answer takes, 0 to 600,000; default 0. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** Recordings for `offline:replay:<id>`. */
  readonly conversations?: readonly Recording[];
}

/** Throws MODEL_UNKNOWN with the names there are, MODEL_CONFIG_INVALID for a think time that is none; both at look-up. */
export function offlineModels({ env = {}, conversations = [] }: OfflineModelsOptions = {}): (name: string) => Model {
  let replay: ((name: string) => Model) | undefined;
  return (name) => {
    const thinkMs = readThinkMs(env["CAPSTAN_OFFLINE_THINK_MS"]);
    if (name === AUDITOR_MODEL) return offlineAuditor({ thinkMs });
    if (name === EXTRACTIVE_MODEL) return offlineExtractive({ thinkMs });
    if (name.startsWith(REPLAY_PREFIX)) return (replay ??= offlineReplay({ conversations, thinkMs }))(name);
    const known = [AUDITOR_MODEL, EXTRACTIVE_MODEL, `${REPLAY_PREFIX}<id>`, `${REPLAY_PREFIX}<file>#<id>`];
    throw new ModelConfigError("MODEL_UNKNOWN", `no offline model "${name}"; there are: ${known.join(", ")}`, { model: name, models: known });
  };
}

function readThinkMs(value: string | undefined): number {
  if (value === undefined || value === "") return 0;
  const ms = Number(value);
  if (Number.isInteger(ms) && ms >= 0 && ms <= MAX_THINK_MS) return ms;
  throw new ModelConfigError("MODEL_CONFIG_INVALID", `CAPSTAN_OFFLINE_THINK_MS must be a whole number of milliseconds from 0 to ${MAX_THINK_MS}, not "${value}"`, {
    variable: "CAPSTAN_OFFLINE_THINK_MS",
    value,
  });
}
