// An identity provider for tests, on a free port of this machine. Prints its issuer, and ends when standard input ends.
//
//   node provider.mjs jwt|opaque
//
// jwt: access tokens are JSON Web Tokens for the audience urn:evenkeel. opaque: only ID tokens are JSON Web Tokens.
// Everyone may log in with any name and password. Users whose name begins with `it-` are in the group `it`.

import { createServer } from 'node:http';
import * as oidc from 'oidc-provider';

const AUDIENCE = 'urn:evenkeel';
const DEVICE_CODE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code';

const kind = process.argv[2];
if (kind !== 'jwt' && kind !== 'opaque') {
  console.error('usage: node provider.mjs jwt|opaque');
  process.exit(2);
}

// Standard output has only the issuer. The library prints notes about settings that are only for tests.
console.info = console.error;
console.log = console.error;
console.warn = console.error;

const groupsOf = (name) => (name.startsWith('it-') ? ['it'] : []);

const configuration = {
  clients: [{
    client_id: 'evenkeel-cli',
    application_type: 'native',
    token_endpoint_auth_method: 'none',
    grant_types: ['authorization_code', 'refresh_token', DEVICE_CODE_GRANT],
    response_types: ['code'],
    redirect_uris: ['http://127.0.0.1/callback'],
  }],
  scopes: ['openid', 'offline_access', 'groups'],
  claims: { groups: ['groups', 'preferred_username'] },
  // ID tokens contain the claims of the scopes, although there is an access token for them.
  conformIdTokenClaims: false,
  pkce: { required: () => true },
  cookies: { keys: ['only for tests'] },
  findAccount: async (_context, name) => ({
    accountId: name,
    claims: async () => ({ sub: name, preferred_username: name, groups: groupsOf(name) }),
  }),
  extraTokenClaims: async (_context, token) => ({ groups: groupsOf(token.accountId ?? '') }),
  issueRefreshToken: async () => true,
  rotateRefreshToken: true,
  features: {
    devInteractions: { enabled: true },
    deviceFlow: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: kind === 'jwt',
      defaultResource: () => AUDIENCE,
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({
        scope: 'evenkeel',
        audience: AUDIENCE,
        accessTokenFormat: 'jwt',
        jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
};

const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const Provider = oidc.Provider ?? oidc.default;
  server.on('request', new Provider(issuer, configuration).callback());
  process.stdout.write(`${issuer}\n`);
});
process.stdin.on('end', () => process.exit(0)).resume();
