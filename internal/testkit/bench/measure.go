package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
)

// A measurement measures a lane once.
type measurement func(b *bench, l lane) figures

// closed is a closed loop of so many clients.
func closed(clients int, send func(lane) requestFunc) measurement {
	return func(b *bench, l lane) figures {
		return b.load(l, clients, func(callers []caller, d time.Duration) figures { return closedLoop(callers, d, send(l)) })
	}
}

// open is an open loop: rate requests a second, on as many connections as needed.
func open(rate int, send func(lane) requestFunc) measurement {
	return func(b *bench, l lane) figures {
		return b.load(l, 64, func(callers []caller, d time.Duration) figures { return openLoop(callers, d, rate, send(l)) })
	}
}

// The requests that workloads send.
func echoes(l lane) requestFunc {
	if l.tool == "" {
		return echo("echo")
	}
	return echo(l.tool)
}
func lists(l lane) requestFunc { return list(l.site.toolCount()) }
func holds(lane) requestFunc   { return held }
func texts(size int) func(lane) requestFunc {
	return func(lane) requestFunc { return big(size) }
}

// load opens callers, warms the peer up with a part of the load, and measures the load.
func (b *bench) load(l lane, clients int, run func([]caller, time.Duration) figures) figures {
	r := b.site(l.site)
	callers, err := r.callers(l, clients)
	if err != nil {
		return failed(err)
	}
	defer closeAll(callers)
	if warm := run(callers, min(b.duration/3, 300*time.Millisecond)); warm.Errors > 0 && l.via != reverse {
		return warm
	}
	runtime.GC() // of the load client
	if l.site.stdio {
		return run(callers, b.duration)
	}
	return charged(r.peers[l.via], func() figures { return run(callers, b.duration) })
}

// charged adds the CPU time, allocations and memory of a peer to the figures of a load.
func charged(p *peer, run func() figures) figures {
	allocated, err := p.allocated()
	if err != nil {
		return failed(err)
	}
	before, err := treeTime(p.pid())
	if err != nil {
		return failed(err)
	}
	f := run()
	after, err := treeTime(p.pid())
	if err != nil {
		return failed(errors.Join(err, p.ended()))
	}
	now, err := p.allocated()
	if err != nil {
		return failed(err)
	}
	if f.Calls > 0 {
		f.CPU = float64((after - before).Microseconds()) / float64(f.Calls)
		f.Allocations = (now - allocated) / float64(f.Calls)
	}
	if f.Resident, err = resident(p.pid()); err != nil {
		return failed(err)
	}
	return f
}

// treeTime returns the CPU time of a process and of those that it has started.
func treeTime(pid int) (time.Duration, error) {
	total, err := cpuTime(pid)
	if err != nil {
		return 0, err
	}
	started, err := children(pid)
	for _, child := range started {
		t, lost := treeTime(child)
		total, err = total+t, errors.Join(err, lost)
	}
	return total, err
}

// disk measures fdatasync of a file where the trails are.
func disk(b *bench, _ lane) figures {
	took, err := syncTime(b.dir, 100)
	if err != nil {
		return failed(err)
	}
	return sum([]times{{calls: took}}, time.Second)
}

// eachRole lists the tools as a hundred agents, one after the other, each with a
// rights set of its own; their lists have been made before.
func eachRole(b *bench, l lane) figures {
	r := b.site(l.site)
	var callers []caller
	defer func() { closeAll(callers) }()
	for i := range warmRoles {
		c, err := r.caller(l, i+1)
		if err != nil {
			return failed(err)
		}
		callers = append(callers, c)
	}
	send := lists(l)
	var t times
	for pass := range 2 {
		t = times{}
		for i, c := range callers {
			begun := time.Now()
			err := send(c, i, pass)
			t.add(time.Since(begun), err)
		}
	}
	return sum([]times{t}, b.duration)
}

// warmRoles are the agents of eachRole; the site's other agents are left to firstList.
const warmRoles = 100

// firstList lists the tools for a rights set that no list was made for.
func firstList(b *bench, l lane) figures {
	b.used++
	if warmRoles+b.used > l.site.agents {
		return failed(fmt.Errorf("no agent is left: %d rounds are too many", b.used))
	}
	c, err := b.site(l.site).caller(l, warmRoles+b.used)
	if err != nil {
		return failed(err)
	}
	defer c.close()
	begun := time.Now()
	err = lists(l)(c, 0, 0)
	var t times
	t.add(time.Since(begun), err)
	return sum([]times{t}, time.Since(begun))
}

// startup starts one more peer. Value is the time to its first answers in ms, CPU what its
// process took for them.
func startup(b *bench, l lane) figures {
	return fresh(b, l, func(_ *running, p *peer) (figures, error) {
		took, err := cpuTime(p.pid())
		if err != nil {
			return figures{}, err
		}
		f := figures{Calls: 1, Value: float64(p.ready.Microseconds()) / 1e3, CPU: float64(took.Microseconds())}
		f.Resident, err = resident(p.pid())
		return f, err
	})
}

// fresh measures a peer that has just started, and ends it.
func fresh(b *bench, l lane, measure func(*running, *peer) (figures, error)) figures {
	r := b.site(l.site)
	p, err := r.fresh(l.via)
	if err != nil {
		return failed(err)
	}
	f, err := measure(r, p)
	p.end()
	if err != nil {
		return failed(err)
	}
	return f
}

// memoryAfter makes a million calls to a peer that has just started, or a tenth of them
// for the lane early. Resident is its memory then.
func memoryAfter(b *bench, l lane) figures {
	most := 1_000_000
	if l.name == "early" {
		most /= 10
	}
	return fresh(b, l, func(_ *running, p *peer) (f figures, err error) {
		var opened []caller
		defer func() { closeAll(opened) }()
		for range 64 {
			s, err := dial(p.endpoint)
			if err != nil {
				return figures{}, err
			}
			opened = append(opened, s)
		}
		for f.Calls < most && f.Errors == 0 {
			pass := closedLoop(opened, time.Second, echo("echo"))
			f.Calls, f.Errors = f.Calls+pass.Calls, pass.Errors
		}
		f.Resident, err = resident(p.pid())
		return f, err
	})
}

// settle is how long a process is left alone before its memory is read.
const settle = 2 * time.Second

// idleSessions opens a thousand sessions, each with one call and, if listening is
// set, a GET stream. Value is what a session adds to the memory that no file backs, in KB:
// an idle program gives back pages of its file too.
func idleSessions(listening bool) measurement {
	const sessions = 1000
	return func(b *bench, l lane) figures {
		return fresh(b, l, func(_ *running, p *peer) (figures, error) {
			before, err := anonymous(p.pid())
			if err != nil {
				return figures{}, err
			}
			var opened []caller
			defer func() { closeAll(opened) }()
			for range sessions {
				s, err := dial(p.endpoint)
				if err != nil {
					return figures{}, err
				}
				opened = append(opened, s)
				if err = echo("echo")(s, 0, 0); err == nil && listening {
					err = s.listen()
				}
				if err != nil {
					return figures{}, err
				}
			}
			pause(settle)
			after, err := anonymous(p.pid())
			return figures{Calls: sessions, Value: (after - before) / sessions / 1e3}, err
		})
	}
}

// isolated opens a session for each agent of the site, with one call each, and keeps
// all of them open. Value is the number of agents that were served.
func isolated(b *bench, l lane) figures {
	return fresh(b, l, func(_ *running, p *peer) (figures, error) {
		var opened []caller
		defer func() { closeAll(opened) }()
		for i := range l.site.agents {
			e := p.endpoint
			e.token = token(i + 1)
			s, err := dial(e)
			if err != nil {
				return figures{}, err
			}
			opened = append(opened, s)
			if err := echo("echo")(s, 0, 0); err != nil {
				return figures{}, fmt.Errorf("agent %d: %w", i+1, err)
			}
		}
		return figures{Calls: len(opened), Value: float64(len(opened))}, nil
	})
}

// idleCPU leaves a process alone. Value is its CPU time in percent of one core.
func idleCPU(b *bench, l lane) figures {
	return fresh(b, l, func(_ *running, p *peer) (figures, error) {
		pause(settle)
		before, err := cpuTime(p.pid())
		if err != nil {
			return figures{}, err
		}
		begun := time.Now()
		pause(5 * b.duration)
		after, err := cpuTime(p.pid())
		return figures{Calls: 1, Value: 100 * float64(after-before) / float64(time.Since(begun))}, err
	})
}

// guardian measures the process between a toolgate and its stdio server, of which toolgate
// may have started a spare one. Value is the memory of the first that no file backs, in MB.
func guardian(b *bench, l lane) figures {
	r := b.site(l.site)
	if _, err := r.caller(l, 0); err != nil {
		return failed(err)
	}
	if err := echo("echo")(r.pipes[gate].caller(), 0, 0); err != nil {
		return failed(err)
	}
	started, err := children(r.pipes[gate].proc.pid())
	if err == nil && len(started) == 0 {
		err = errors.New("toolgate has started no process")
	}
	if err != nil {
		return failed(err)
	}
	size, err := anonymous(started[0])
	if err != nil {
		return failed(err)
	}
	return figures{Calls: 1, Value: size / 1e6}
}

// binary measures the program file. Value is its size in MB.
func binary(b *bench, _ lane) figures {
	info, err := os.Stat(b.toolgate)
	if err != nil {
		return failed(err)
	}
	return figures{Calls: 1, Value: float64(info.Size()) / 1e6}
}
