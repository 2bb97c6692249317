enum E { A = 1 << 2 }
namespace N { export const x = 1; }
abstract class C<T extends E> { constructor(private readonly t: T) {} abstract m(): asserts this is C<T>; }
export default (e: C<E>) => e satisfies unknown as never;
