module.exports = require('../node_modules/punycode');
