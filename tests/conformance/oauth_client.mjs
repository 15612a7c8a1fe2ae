// The TypeScript SDK's OAuth client, version 1 or 2, at a protected server whose authorization server consents at once.
// Called in the folder that has its packages: node oauth_client.mjs 1 http://127.0.0.1:8000/mcp execute_tool '{...}'

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [version, url, tool, parameters] = process.argv.slice(2);
const require = createRequire(process.cwd() + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)).href);

const packages = version === "1"
  ? [await load("@modelcontextprotocol/sdk/client/index.js"), await load("@modelcontextprotocol/sdk/client/streamableHttp.js")]
  : [await load("@modelcontextprotocol/client")];
const { Client, StreamableHTTPClientTransport } = Object.assign({}, ...packages);
const options = version === "1" ? {} : { versionNegotiation: { mode: "auto" } };

const redirectUrl = "http://127.0.0.1:9/callback";
const asked = [];
let registered, tokens, verifier, state, answer;
const provider = {
  redirectUrl,
  clientMetadata: {
    client_name: "typescript",
    redirect_uris: [redirectUrl],
    grant_types: ["authorization_code", "refresh_token"],
    response_types: ["code"],
    token_endpoint_auth_method: "none",
  },
  state: () => (state = crypto.randomUUID()),
  clientInformation: () => registered,
  saveClientInformation: (given) => { registered = given; },
  tokens: () => tokens,
  saveTokens: (given) => { tokens = given; },
  codeVerifier: () => verifier,
  saveCodeVerifier: (given) => { verifier = given; },
  async redirectToAuthorization(page) {
    asked.push({ resource: page.searchParams.get("resource"), scope: page.searchParams.get("scope") });
    const consent = await fetch(page, { redirect: "manual" });
    answer = new URL(consent.headers.get("location")).searchParams;
    if (answer.get("state") !== state) throw new Error("the answer is for another request");
  },
};

const isLoginNeeded = (error) => error?.name === "UnauthorizedError" || /unauthorized/i.test(String(error));

// Repeats what needs a login, once the person has logged in.
async function withLogin(work) {
  let [client, transport] = connection();
  for (let tries = 0; ; tries += 1) {
    try {
      return await work(client, transport);
    } catch (error) {
      if (!answer || tries > 2) throw error;
      if (!isLoginNeeded(error)) throw error;
      await (version === "1" ? transport.finishAuth(answer.get("code")) : transport.finishAuth(answer));
      answer = undefined;
      [client, transport] = connection();
    }
  }
}

function connection() {
  const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider: provider });
  return [new Client({ name: "typescript", version }, options), transport];
}

const said = await withLogin(async (client, transport) => {
  await client.connect(transport);
  await client.listTools();
  const result = await client.callTool({ name: tool, arguments: JSON.parse(parameters) });
  const speaks = client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion;
  await client.close();
  return { text: result.content[0].text, speaks };
});
console.log(JSON.stringify({ ...said, asked, kind: tokens.token_type }));
