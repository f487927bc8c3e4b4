/** The OpenAPI document, made of the routes' own schemas, and a page to read it by. Nothing of it comes from another host. */
import swagger from "@fastify/swagger";
import swaggerUi from "@fastify/swagger-ui";
import type { FastifyInstance } from "fastify";
import { createJsonSchemaTransform, createJsonSchemaTransformObject } from "fastify-type-provider-zod";
import { VERSION } from "../version.ts";

/** What JSON Schema cannot say is checked all the same; the document says "any" there. */
const zodToJsonConfig = { unrepresentable: "any" } as const;

export async function registerDocument(app: FastifyInstance): Promise<void> {
  await app.register(swagger, {
    openapi: {
      openapi: "3.1.0",
      info: {
        title: "Capstan",
        version: VERSION,
        description: "Durable runs of AI agents. Errors are problem documents (RFC 9457); programs go by `code`.",
      },
      components: { securitySchemes: { token: { type: "http", scheme: "bearer", description: "`capstan tokens create` makes one" } } },
      security: [{ token: [] }],
    },
    transform: createJsonSchemaTransform({ skipList: [], zodToJsonConfig }),
    transformObject: createJsonSchemaTransformObject({ zodToJsonConfig }),
  });
  await app.register(swaggerUi, { routePrefix: "/docs", staticCSP: true, uiConfig: { tryItOutEnabled: false, persistAuthorization: false, validatorUrl: null } });
  app.get("/openapi.json", { schema: { hide: true } }, async (_, reply) => await reply.type("application/json").send(JSON.stringify(app.swagger())));
}
