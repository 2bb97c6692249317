const legacy = require('../node_modules/url');
const { URL, URLSearchParams } = globalThis;
module.exports = Object.assign({}, legacy, {
  URL, URLSearchParams,
  fileURLToPath: (url) => {
    const { protocol, pathname } = new URL(url);
    if (protocol !== 'file:') throw Object.assign(new TypeError('The URL must be of scheme file'), { code: 'ERR_INVALID_URL_SCHEME' });
    return decodeURIComponent(pathname);
  },
  pathToFileURL: (path) => new URL('file://' + encodeURI(path.startsWith('/') ? path : '/' + path).replace(/[?#]/g, encodeURIComponent)),
  domainToASCII: (name) => { try { return new URL('http://' + name).hostname; } catch { return ''; } },
  urlToHttpOptions: (url) => ({
    protocol: url.protocol, hostname: url.hostname, hash: url.hash, search: url.search, pathname: url.pathname,
    path: url.pathname + url.search, href: url.href, ...(url.port && { port: Number(url.port) }),
    ...(url.username && { auth: decodeURIComponent(url.username) + ':' + decodeURIComponent(url.password) }),
  }),
});
