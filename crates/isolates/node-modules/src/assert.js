module.exports = require('../node_modules/assert');
