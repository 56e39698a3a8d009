// An issuer of JWT access tokens for tests: node issuer.mjs PORT AUDIENCE CLIENTS.
// CLIENTS is JSON: for each client id the claims that its tokens get. Any of them gets a
// token with grant_type=client_credentials and the secret "client-secret".
import Provider from 'oidc-provider';

const [port, audience, clients] = process.argv.slice(2);
const claims = JSON.parse(clients);

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: Object.keys(claims).map((id) => ({
    client_id: id, client_secret: 'client-secret', grant_types: ['client_credentials'], redirect_uris: [], response_types: [],
  })),
  cookies: { keys: ['for tests'] },
  extraTokenClaims: (_, token) => claims[token.clientId],
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: false },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => audience,
      getResourceServerInfo: () => ({ scope: '', audience, accessTokenFormat: 'jwt', accessTokenTTL: 600 }),
    },
  },
});
provider.listen(Number(port), '127.0.0.1', () => console.log('listening'));
