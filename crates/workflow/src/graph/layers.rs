//! Puts items with edges into layers from top to bottom: longest paths, then barycentres.

use std::collections::HashMap;

/// Between items of a layer, in pixels.
const GAP_X: f64 = 28.0;
/// Between layers, in pixels.
const GAP_Y: f64 = 46.0;
/// Beyond so many places for edges that pass layers, edges go straight.
const MOST_BENDS: usize = 20_000;
const SWEEPS: usize = 6;

/// Where the items and the bends of the edges are. The smallest left and top are 0.
#[derive(Debug, Default)]
pub(super) struct Placed {
    /// The middle of each item.
    pub(super) middles: Vec<(f64, f64)>,
    /// For each edge the places where it passes layers, from its beginning on.
    pub(super) bends: Vec<Vec<(f64, f64)>>,
    /// For each edge whether it leads back up.
    pub(super) back: Vec<bool>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// An item, or a place where an edge passes a layer.
struct Cell {
    width: f64,
    up: Vec<usize>,
    down: Vec<usize>,
}

/// Places items of these widths and heights; edges are pairs of items.
pub(super) fn place(sizes: &[(f64, f64)], edges: &[(usize, usize)]) -> Placed {
    let (layer_of, back) = layers(sizes.len(), edges);
    let count = layer_of.iter().max().map_or(0, |last| last + 1);
    let mut layers: Vec<Vec<usize>> = vec![Vec::new(); count];
    let mut cells: Vec<Cell> =
        sizes.iter().map(|(width, _)| Cell { width: *width, up: vec![], down: vec![] }).collect();
    for (item, layer) in layer_of.iter().enumerate() {
        layers[*layer].push(item);
    }
    let mut chains = Vec::with_capacity(edges.len());
    for ((from, to), back) in edges.iter().zip(&back) {
        let mut chain = Vec::new();
        if !back {
            let mut last = *from;
            for layer in layers.iter_mut().take(layer_of[*to]).skip(layer_of[*from] + 1) {
                if cells.len() - sizes.len() >= MOST_BENDS {
                    break;
                }
                let bend = cells.len();
                cells.push(Cell { width: 4.0, up: vec![last], down: vec![] });
                cells[last].down.push(bend);
                layer.push(bend);
                chain.push(bend);
                last = bend;
            }
            cells[last].down.push(*to);
            cells[*to].up.push(last);
        }
        chains.push(chain);
    }
    order(&mut layers, &cells);
    let xs = columns(&layers, &cells);
    let (ys, height) = rows(&layers, sizes);
    let width = cells.iter().zip(&xs).map(|(cell, x)| x + cell.width / 2.0).fold(0.0, f64::max);
    let at = |cell: &usize| (xs[*cell], ys[*cell]);
    Placed {
        middles: (0..sizes.len()).map(|item| at(&item)).collect(),
        bends: chains.iter().map(|chain| chain.iter().map(at).collect()).collect(),
        back,
        width,
        height,
    }
}

/// The layer of each item, and which edges lead back.
fn layers(items: usize, edges: &[(usize, usize)]) -> (Vec<usize>, Vec<bool>) {
    let mut out: Vec<Vec<usize>> = vec![Vec::new(); items];
    let mut has_in = vec![false; items];
    for (edge, (from, to)) in edges.iter().enumerate() {
        out[*from].push(edge);
        has_in[*to] |= from != to;
    }
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        Open,
        Done,
    }
    let mut back = vec![false; edges.len()];
    let mut seen = vec![Seen::No; items];
    let mut finished = Vec::with_capacity(items);
    let roots = (0..items).filter(|item| !has_in[*item]).chain((0..items).filter(|item| has_in[*item]));
    for root in roots {
        if seen[root] != Seen::No {
            continue;
        }
        seen[root] = Seen::Open;
        let mut stack = vec![(root, 0)];
        while let Some((item, next)) = stack.pop() {
            let Some(edge) = out[item].get(next) else {
                seen[item] = Seen::Done;
                finished.push(item);
                continue;
            };
            stack.push((item, next + 1));
            let to = edges[*edge].1;
            match seen[to] {
                Seen::Open => back[*edge] = true,
                Seen::Done => {}
                Seen::No => {
                    seen[to] = Seen::Open;
                    stack.push((to, 0));
                }
            }
        }
    }
    let mut layer = vec![0; items];
    for item in finished.into_iter().rev() {
        for edge in out[item].iter().filter(|edge| !back[**edge]) {
            let to = edges[*edge].1;
            layer[to] = layer[to].max(layer[item] + 1);
        }
    }
    (layer, back)
}

/// Sorts each layer by where the neighbours are, down and up in turn.
fn order(layers: &mut [Vec<usize>], cells: &[Cell]) {
    let mut position: HashMap<usize, f64> = HashMap::new();
    for layer in layers.iter() {
        position.extend(layer.iter().enumerate().map(|(index, cell)| (*cell, index as f64)));
    }
    for sweep in 0..SWEEPS {
        let downwards = sweep % 2 == 0;
        for step in 0..layers.len() {
            let layer = if downwards { step } else { layers.len() - 1 - step };
            let wanted = |cell: &usize| {
                let neighbours = if downwards { &cells[*cell].up } else { &cells[*cell].down };
                mean(neighbours.iter().map(|neighbour| position[neighbour])).unwrap_or(position[cell])
            };
            let mut sorted: Vec<_> = layers[layer].iter().map(|cell| (wanted(cell), *cell)).collect();
            sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
            layers[layer] = sorted.into_iter().map(|(_, cell)| cell).collect();
            position.extend(layers[layer].iter().enumerate().map(|(index, cell)| (*cell, index as f64)));
        }
    }
}

/// The middle of each cell from the left, near to that of its neighbours and without overlaps.
fn columns(layers: &[Vec<usize>], cells: &[Cell]) -> Vec<f64> {
    let mut xs = vec![0.0; cells.len()];
    for sweep in 0..=SWEEPS {
        let downwards = sweep % 2 == 0;
        for step in 0..layers.len() {
            let layer = &layers[if downwards { step } else { layers.len() - 1 - step }];
            let wanted: Vec<f64> = layer
                .iter()
                .map(|cell| {
                    let neighbours = if downwards { &cells[*cell].up } else { &cells[*cell].down };
                    mean(neighbours.iter().map(|neighbour| xs[*neighbour])).unwrap_or(xs[*cell])
                })
                .collect();
            let mut right = f64::NEG_INFINITY;
            let mut moved = 0.0;
            for (cell, wanted) in layer.iter().zip(&wanted) {
                let half = cells[*cell].width / 2.0;
                xs[*cell] = wanted.max(right + GAP_X + half);
                right = xs[*cell] + half;
                moved += xs[*cell] - wanted;
            }
            // They were pushed to the right only; the whole layer goes back by the mean of that.
            let shift = moved / layer.len().max(1) as f64;
            layer.iter().for_each(|cell| xs[*cell] -= shift);
        }
    }
    let left = cells.iter().zip(&xs).map(|(cell, x)| x - cell.width / 2.0).fold(f64::INFINITY, f64::min);
    xs.iter_mut().for_each(|x| *x -= left);
    xs
}

/// The middle of each cell from the top, and the height of all.
fn rows(layers: &[Vec<usize>], sizes: &[(f64, f64)]) -> (Vec<f64>, f64) {
    let cells: usize = layers.iter().map(Vec::len).sum();
    let mut ys = vec![0.0; cells];
    let mut top = 0.0;
    for layer in layers {
        let tallest =
            layer.iter().filter_map(|cell| sizes.get(*cell)).map(|size| size.1).fold(0.0, f64::max);
        layer.iter().for_each(|cell| ys[*cell] = top + tallest / 2.0);
        top += tallest + GAP_Y;
    }
    (ys, (top - GAP_Y).max(0.0))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}
