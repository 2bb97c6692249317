const path = require('path-browserify');
path.posix = path;
module.exports = path;
