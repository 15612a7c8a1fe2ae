// The TypeScript SDK, version 1 or 2. Called like `frameworks.py`, in the folder that has its packages.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [version, given, script] = process.argv.slice(2);
const server = JSON.parse(given);
const steps = JSON.parse(script);
const require = createRequire(process.cwd() + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)).href);

async function connect() {
  if (version === "1") {
    const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
    const { StdioClientTransport } = await load("@modelcontextprotocol/sdk/client/stdio.js");
    const { StreamableHTTPClientTransport } = await load("@modelcontextprotocol/sdk/client/streamableHttp.js");
    return [new Client({ name: "ts", version: "1" }), StdioClientTransport, StreamableHTTPClientTransport];
  }
  const { Client, StreamableHTTPClientTransport } = await load("@modelcontextprotocol/client");
  const { StdioClientTransport } = await load("@modelcontextprotocol/client/stdio");
  const options = { versionNegotiation: { mode: "auto" } };
  return [new Client({ name: "ts", version: "2" }, options), StdioClientTransport, StreamableHTTPClientTransport];
}

const [client, Stdio, Http] = await connect();
const [command, ...args] = server.command ?? [];
await client.connect(server.url ? new Http(new URL(server.url)) : new Stdio({ command, args, env: server.env }));
const listed = (await client.listTools()).tools.map((tool) => tool.name);
const texts = [];
for (const [name, parameters] of steps) {
  if (!listed.includes(name)) throw new Error(`${name} is not among ${listed}`);
  try {
    texts.push((await client.callTool({ name, arguments: parameters })).content[0].text);
  } catch (error) {
    texts.push(`${error.name}: ${error.message}`);
  }
}
await client.close();
console.log(JSON.stringify(texts));
