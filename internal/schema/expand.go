package schema

// expand gives the weight of the schema with every reference written out, by
// dynamic programming over the groups of subschemas that lead to each other
// (Tarjan's strongly connected components). Members of one group count once:
// how often recursion really visits them depends on the instance, which the
// meter counts.
func (g *graph) expand() float64 {
	w := walker{g: g, index: make([]int, len(g.nodes)), low: make([]int, len(g.nodes)),
		group: make([]int, len(g.nodes)), total: []float64{0}}
	w.walk(g.nodes[0])
	return w.total[w.group[0]]
}

// walker holds Tarjan's bookkeeping, indexed by node id; 0 means not yet.
type walker struct {
	g          *graph
	next       int
	index, low []int
	stack      []*node
	group      []int
	total      []float64 // by group
}

func (w *walker) walk(n *node) {
	w.next++
	w.index[n.id], w.low[n.id] = w.next, w.next
	w.stack = append(w.stack, n)
	n.each(func(to *node) {
		switch {
		case w.index[to.id] == 0:
			w.walk(to)
			w.low[n.id] = min(w.low[n.id], w.low[to.id])
		case w.group[to.id] == 0:
			w.low[n.id] = min(w.low[n.id], w.index[to.id])
		}
	})
	if w.low[n.id] == w.index[n.id] {
		w.finish(n)
	}
}

// finish takes the group whose first member is n off the stack and sums it up.
func (w *walker) finish(n *node) {
	from := len(w.stack) - 1
	for w.stack[from] != n {
		from--
	}
	members := w.stack[from:]
	w.stack = w.stack[:from]
	id, sum := len(w.total), 0.0
	for _, m := range members {
		w.group[m.id] = id
	}
	for _, m := range members {
		sum += m.weight
		m.each(func(to *node) {
			if w.group[to.id] == id {
				w.g.recursive = true
			} else {
				sum = min(sum+w.total[w.group[to.id]], 2*maxExpanded)
			}
		})
	}
	w.total = append(w.total, sum)
}
