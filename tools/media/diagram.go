package media

import (
	"image"
	"slices"
	"strconv"
	"strings"
)

// graph is a diagram: its boxes, and arrows between them by index.
type graph struct {
	title  string
	nodes  []string
	arrows [][2]int
}

func (g *graph) node(name string) int {
	if i := slices.Index(g.nodes, name); i >= 0 {
		return i
	}
	g.nodes = append(g.nodes, name)
	return len(g.nodes) - 1
}

// readDiagram reads entries A -> B -> C; all others are the title.
func readDiagram(prompt string) (*graph, error) {
	var g graph
	var other []string
	for _, entry := range entries(strings.ReplaceAll(prompt, "→", "->")) {
		names := strings.Split(entry, "->")
		if len(names) == 1 {
			other = append(other, entry)
			continue
		}
		last := -1
		for _, name := range names {
			if name = strings.Join(strings.Fields(name), " "); name == "" {
				return nil, unsuitable("a diagram has an arrow without a name at one end: write A -> B")
			}
			at := g.node(name)
			if last >= 0 && !slices.Contains(g.arrows, [2]int{last, at}) {
				g.arrows = append(g.arrows, [2]int{last, at})
			}
			last = at
		}
	}
	if len(g.nodes) == 0 || len(g.nodes) > maxNodes {
		return nil, unsuitable("a diagram needs lines A -> B, with 1 to " + strconv.Itoa(maxNodes) + " names; other lines are its title")
	}
	g.title = strings.Join(other, " ")
	return &g, nil
}

// rows puts each box below those with an arrow to it. A circle ends after as many steps
// as there are boxes.
func (g *graph) rows() (rows [][]int) {
	level := make([]int, len(g.nodes))
	for range g.nodes {
		for _, a := range g.arrows {
			if next := level[a[0]] + 1; next > level[a[1]] && next < len(g.nodes) && a[0] != a[1] {
				level[a[1]] = next
			}
		}
	}
	for l := range len(g.nodes) {
		var row []int
		for i := range g.nodes {
			if level[i] == l {
				row = append(row, i)
			}
		}
		if row != nil {
			rows = append(rows, row)
		}
	}
	return rows
}

// diagram draws boxes in rows from the top, and arrows under them.
func diagram(s *scene, area image.Rectangle, prompt string) error {
	g, err := readDiagram(prompt)
	if err != nil {
		return err
	}
	if g.title != "" {
		head := area
		head.Max.Y = head.Min.Y + 2*lineHeight
		s.text(head, g.title, 2, ink)
		area.Min.Y = head.Max.Y + lineHeight
	}
	places, rows := make([]image.Rectangle, len(g.nodes)), g.rows()
	for i, row := range rows {
		for j, node := range row {
			cell := image.Rect(j*area.Dx()/len(row), i*area.Dy()/len(rows), (j+1)*area.Dx()/len(row), (i+1)*area.Dy()/len(rows)).Add(area.Min)
			places[node] = cell.Inset(min(cell.Dx(), cell.Dy()) / 5)
		}
	}
	for _, a := range g.arrows {
		arrow(s, places[a[0]], places[a[1]])
	}
	for i, place := range places {
		s.box(place, accent)
		s.box(place.Inset(2), pale)
		s.centred(place.Inset(4), g.nodes[i], 1, ink)
	}
	return nil
}

// arrow draws a line with a head from one box to another, at their facing sides.
func arrow(s *scene, from, to image.Rectangle) {
	start, end, back := image.Pt((from.Min.X+from.Max.X)/2, from.Max.Y), image.Pt((to.Min.X+to.Max.X)/2, to.Min.Y), -7
	if to.Min.Y <= from.Min.Y { // to a box above, or beside
		start.Y, end.Y, back = from.Min.Y, to.Max.Y, 7
	}
	s.line(start, end, ink)
	s.line(end, end.Add(image.Pt(-5, back)), ink)
	s.line(end, end.Add(image.Pt(5, back)), ink)
}
