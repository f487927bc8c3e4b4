/** Why a stream ends before its run does, as the other routes would answer it (RFC 9457). */
import type { JsonObject } from "../../domain/json.ts";

export function tokenGoneProblem(): JsonObject {
  return {
    type: "about:blank",
    title: "Unauthorized",
    status: 401,
    code: "UNAUTHORIZED",
    detail: "the token of this stream has expired or was revoked; come again with another one",
  };
}

export function runGoneProblem(runId: string): JsonObject {
  return { type: "about:blank", title: "Not Found", status: 404, code: "RUN_MISSING", detail: `no run ${runId}` };
}

export function internalProblem(runId: string): JsonObject {
  return {
    type: "about:blank",
    title: "Internal Server Error",
    status: 500,
    code: "INTERNAL",
    detail: `run ${runId} cannot be read; the server's log says why. Come again from the last event`,
  };
}
