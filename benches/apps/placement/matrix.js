// matrixMult: multiplies two matrices of 100 x 100 numbers.
const SIZE = 100;

export default function matrix() {
  const a = new Float64Array(SIZE * SIZE).map((_, index) => index % 17);
  const b = new Float64Array(SIZE * SIZE).map((_, index) => index % 13);
  let trace = 0;
  const product = new Float64Array(SIZE * SIZE);
  for (let row = 0; row < SIZE; row++) {
    for (let column = 0; column < SIZE; column++) {
      let sum = 0;
      for (let k = 0; k < SIZE; k++) sum += a[row * SIZE + k] * b[k * SIZE + column];
      product[row * SIZE + column] = sum;
    }
    trace += product[row * SIZE + row];
  }
  return { trace };
}
