/** JSON bodies, read by our own reader: names of members come back exactly as they were sent. */
import type { FastifyInstance } from "fastify";
import { parseJsonText } from "../domain/json-text.ts";
import { RequestError } from "./problems.ts";

export function registerBodies(app: FastifyInstance): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser("application/json", { parseAs: "string" }, (_, text, done) => {
    // Many clients send the header with every POST; whether a body is needed is the route's to say.
    if (text === "") return done(null, undefined);
    try {
      done(null, parseJsonText(text as string));
    } catch (error) {
      done(new RequestError("JSON_INVALID", `the body is no JSON: ${error instanceof SyntaxError ? error.message : "it is nested too deeply"}`));
    }
  });
}
