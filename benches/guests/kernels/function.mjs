import { run } from './kernels.mjs';

export default (event) => run(event.json());
