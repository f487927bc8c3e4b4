import { CapstanError } from "../domain/error.ts";
import type { JsonObject } from "../domain/json.ts";

/** A model name or a key that configuration must put right. Raised when a model is looked up, never during a turn. */
export class ModelConfigError extends CapstanError {
  override readonly name = "ModelConfigError";
  readonly code: "MODEL_UNKNOWN" | "MODEL_KEY_MISSING" | "MODEL_CONFIG_INVALID";
  override readonly details: JsonObject;

  constructor(code: ModelConfigError["code"], message: string, details: JsonObject, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
    this.details = details;
  }
}
