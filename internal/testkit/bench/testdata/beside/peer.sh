#!/bin/sh
# Starts an MCP proxy or gateway of others: NAME UPSTREAM PORT DIR, where UPSTREAM is
# host:port of an MCP server and DIR is for what it writes. $PEERS has them installed:
#
#	python3 -m venv $PEERS/fastmcp && $PEERS/fastmcp/bin/pip install fastmcp==4.2.3
#	python3 -m venv $PEERS/litellm && $PEERS/litellm/bin/pip install 'litellm[proxy]==1.108.7'
#	python3 -m venv $PEERS/contextforge && $PEERS/contextforge/bin/pip install mcp-contextforge-gateway==1.0.7.post20260921
#	cargo install --root $PEERS/mcp-proxy --locked --no-default-features mcp-proxy@0.6.0
#	npm install --prefix $PEERS/civic @civic/passthrough-mcp-server@0.12.1
#
# What asks for updates, prices or reports over the network is switched off.
set -eu
name=$1 url=http://$2/mcp port=$3 dir=$4
cd "$dir"
case $name in
fastmcp)
	cat >proxy.py <<-END
		import asyncio
		from fastmcp import Client
		from fastmcp.server import create_proxy

		async def main():
		    async with Client("$url") as upstream:  # one session for all callers
		        await create_proxy(upstream).run_async(transport="http", host="127.0.0.1", port=$port, json_response=True, show_banner=False)

		asyncio.run(main())
	END
	export FASTMCP_CHECK_FOR_UPDATES=off FASTMCP_LOG_LEVEL=WARNING
	exec "$PEERS/fastmcp/bin/python3" proxy.py
	;;
litellm)
	cat >config.yaml <<-END
		mcp_servers:
		  up: {url: "$url", transport: http, allow_all_keys: true}
		general_settings: {master_key: sk-bench}
	END
	export LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_LOG=ERROR
	exec "$PEERS/litellm/bin/litellm" --config config.yaml --host 127.0.0.1 --port "$port" --telemetry False
	;;
contextforge)
	PATH=$PEERS/contextforge/bin:$PATH
	export PATH DATABASE_URL="sqlite:///$dir/mcp.db" CACHE_TYPE=memory SSRF_ALLOW_LOCALHOST=true ENVIRONMENT=development
	export RATE_LIMITING_ENABLED=false MCP_REQUIRE_AUTH=false USE_STATEFUL_SESSIONS=true
	export JWT_SECRET_KEY=only-for-the-benchmark-0123456789 AUTH_ENCRYPTION_SECRET=only-for-the-benchmark-9876543210
	(
		until curl -sf "http://127.0.0.1:$port/health" >health; do sleep 0.2; done
		token=$(python3 -m mcpgateway.utils.create_jwt_token --username admin@example.com --admin --exp 60 --secret "$JWT_SECRET_KEY" 2>/dev/null)
		curl -sS -H "Authorization: Bearer $token" -H 'Content-Type: application/json' "http://127.0.0.1:$port/gateways" \
			-d "{\"name\":\"up\",\"url\":\"$url\",\"transport\":\"STREAMABLEHTTP\",\"visibility\":\"public\"}"
	) >&2 &
	exec mcpgateway --host 127.0.0.1 --port "$port" --no-access-log
	;;
mcp-proxy)
	cat >proxy.toml <<-END
		[proxy]
		name = "bench"
		[proxy.listen]
		host = "127.0.0.1"
		port = $port
		[[backends]]
		name = "up"
		transport = "http"
		url = "$url"
	END
	exec "$PEERS/mcp-proxy/bin/mcp-proxy" --config proxy.toml
	;;
civic)
	export PORT="$port" TARGET_SERVER_URL="http://$2"
	exec node "$(readlink -f "$PEERS/civic/node_modules/@civic/passthrough-mcp-server/dist/cli.js")"
	;;
esac
