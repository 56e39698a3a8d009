// Package program is for tests: programs that a test builds, starts, waits for
// and ends, toolgate itself among them. A program never outlives the test that
// started it, however that ends.
//
// TestMain finds the processes that outlive the tests:
//
//	func TestMain(m *testing.M) { os.Exit(program.Run(m)) }
//
//	p := program.Launch(t, exec.Command(program.Toolgate(t), "serve", …))
//	p.Await(t, "it listens", func() bool { … })
package program
