/** Call frames by definition and model: the same object for the same pair, so that a meter knows its chain again. */
import type { AgentDefinition } from "../domain/definition.ts";
import { renderFrame, type CallFrame } from "../domain/transcript/render.ts";
import type { Model } from "./model-port.ts";

export class Frames {
  readonly #frames = new WeakMap<AgentDefinition, Map<string, CallFrame>>();

  of(definition: AgentDefinition, model: Pick<Model, "name" | "structuredOutput">, options: { readonly withoutTools?: boolean } = {}): CallFrame {
    let byModel = this.#frames.get(definition);
    if (byModel === undefined) this.#frames.set(definition, (byModel = new Map()));
    const key = `${model.name} ${model.structuredOutput} ${options.withoutTools === true}`;
    let frame = byModel.get(key);
    if (frame === undefined) byModel.set(key, (frame = renderFrame(definition, model.name, model.structuredOutput, options)));
    return frame;
  }
}
