/** Log lines and spans with no secret in them. */
import type { Redactor } from "../domain/redact/redactor.ts";
import type { EngineSpan, Log, Tracing } from "../engine/ports.ts";

export function redactedLog(log: Log, redactor: Redactor): Log {
  const at =
    (level: keyof Log) =>
    (fields: object, message: string): void =>
      log[level](redactor.fields(fields), redactor.text(message));
  return { debug: at("debug"), info: at("info"), warn: at("warn"), error: at("error") };
}

type Attributes = Parameters<EngineSpan["set"]>[0];

export function redactedTracing(tracing: Tracing, redactor: Redactor): Tracing {
  const inner = new WeakMap<EngineSpan, EngineSpan>();
  const attributes = (given: Attributes): Attributes => redactor.fields(given) as Attributes;
  return {
    start(name, { parent, attributes: given, ...options }) {
      const span = tracing.start(name, {
        ...options,
        // A tracer knows only spans of its own.
        ...(parent === undefined ? {} : { parent: inner.get(parent) ?? parent }),
        ...(given === undefined ? {} : { attributes: attributes(given) }),
      });
      const redacted: EngineSpan = {
        get traceparent() {
          return span.traceparent;
        },
        set: (more) => span.set(attributes(more)),
        fail: (code, message) => span.fail(code, redactor.text(message)),
        event: (event, more) => span.event(event, attributes(more) as typeof more),
        end: () => span.end(),
      };
      inner.set(redacted, span);
      return redacted;
    },
  };
}
