module.exports = require('../node_modules/readable-stream/lib/ours/browser.js');
