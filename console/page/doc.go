// Package page has what the pages and answers of the console consist of: the frame around a page and
// the parts that pages share, problem details, queries, forms, lists and streams.
//
// Everything that others wrote is shown in its visible form, see [Visible]: nobody sees less, or in
// another order, than what was judged.
//
// Pages are components of templ in *.templ, from which make -f .ci/Makefile pages generates code. Each
// has the frame of frame.templ, and takes its looks from style.css.
package page
