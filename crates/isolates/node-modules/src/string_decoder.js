module.exports = require('../node_modules/string_decoder');
