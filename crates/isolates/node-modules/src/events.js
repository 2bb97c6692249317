const events = require('../node_modules/events');
events.EventEmitter = events;
events.errorMonitor ??= Symbol('events.errorMonitor');
events.setMaxListeners ??= (count, ...emitters) => { for (const emitter of emitters) emitter.setMaxListeners?.(count); };
module.exports = events;
