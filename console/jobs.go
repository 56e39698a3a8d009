package console

import (
	"context"
	"crypto/rand"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

// A Job is work that takes long, which a person began and which goes on when the request has
// ended. It lives in the memory of one process: a restart forgets it.
type Job struct {
	ID      string    `json:"id"`
	State   string    `json:"state"` // one of the constants
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	Progress
	Error  string `json:"error,omitempty"`  // of a failed one
	Result any    `json:"result,omitempty"` // of a done one

	kind   string
	by     Person
	cancel context.CancelFunc
}

// Progress is how far a Job has come.
type Progress struct {
	Doing string `json:"doing,omitempty"` // what it does now
	Done  int64  `json:"done"`
	All   int64  `json:"all,omitempty"` // that Done comes to at the end, 0 = unknown
}

// The states of a [Job].
const (
	JobRunning   = "running"
	JobDone      = "done"
	JobFailed    = "failed"
	JobCancelled = "cancelled"
)

// keptJobs is how many ended jobs of a kind are kept.
const keptJobs = 8

var (
	noJob   = page.Problem{Status: http.StatusNotFound, Code: "NO_JOB", Detail: "there is no such job", Hint: "a restart forgets jobs, and only the last of each kind are kept"}
	jobBusy = page.Problem{Status: http.StatusConflict, Code: "BUSY", Detail: "another job of this kind runs", Hint: "wait for its end; whoever began it may cancel it"}
)

// jobs runs jobs, one of each kind at a time. It is safe for concurrent use.
type jobs struct {
	ctx  context.Context // ends every job
	now  func() time.Time
	fail func(kind string, err error) // receives why a job failed
	wait sync.WaitGroup

	mu  sync.Mutex // protects all, and the jobs in it
	all []*Job     // the oldest first
}

// start begins work and returns its job. Work must end soon after its context. The error is jobBusy.
func (j *jobs) start(kind string, by Person, work func(ctx context.Context, report func(Progress)) (any, error)) (Job, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	ended := 0
	for i := len(j.all) - 1; i >= 0; i-- {
		switch old := j.all[i]; {
		case old.kind != kind:
		case old.State == JobRunning:
			return Job{}, jobBusy
		default:
			if ended++; ended >= keptJobs {
				j.all = slices.Delete(j.all, i, i+1)
			}
		}
	}
	ctx, cancel := context.WithCancel(j.ctx)
	job := &Job{ID: rand.Text(), State: JobRunning, Started: j.now().UTC(), kind: kind, by: by, cancel: cancel}
	j.all = append(j.all, job)
	j.wait.Go(func() {
		defer cancel()
		result, err := work(ctx, func(p Progress) {
			j.mu.Lock()
			defer j.mu.Unlock()
			job.Progress = p
		})
		j.end(ctx, job, result, err)
	})
	return *job, nil
}

// end notes how a job ended.
func (j *jobs) end(ctx context.Context, job *Job, result any, err error) {
	if err != nil && ctx.Err() == nil {
		j.fail(job.kind, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	job.Ended = j.now().UTC()
	switch {
	case err == nil:
		job.State, job.Result = JobDone, result
	case ctx.Err() != nil:
		job.State = JobCancelled
	default:
		job.State, job.Error = JobFailed, page.Visible(err.Error())
	}
}

// list returns the jobs of a kind that a person began, the newest first and without their results.
func (j *jobs) list(kind string, by Person) []Job {
	j.mu.Lock()
	defer j.mu.Unlock()
	found := []Job{}
	for _, job := range slices.Backward(j.all) {
		if job.kind == kind && job.by == by {
			shown := *job
			shown.Result = nil
			found = append(found, shown)
		}
	}
	return found
}

// find returns the job of a kind with an ID that a person began, and cancels it if asked to. The error is noJob.
func (j *jobs) find(kind, id string, by Person, cancel bool) (Job, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, job := range j.all {
		if job.kind == kind && job.ID == id && job.by == by {
			if cancel {
				job.cancel()
			}
			return *job, nil
		}
	}
	return Job{}, noJob
}

// routes are the routes of the jobs of a kind at a path. People see and cancel the jobs that they
// began themselves.
func (j *jobs) routes(g *people.Guard, path, kind string, begin page.CallerHandler) page.Routes {
	show := func(cancel bool) page.CallerHandler {
		return page.Answers(func(r *http.Request, p policy.Principal) (any, error) {
			return j.find(kind, r.PathValue("id"), personOf(p), cancel)
		})
	}
	list := func(_ *http.Request, p policy.Principal) (any, error) {
		return map[string][]Job{"jobs": j.list(kind, personOf(p))}, nil
	}
	return page.Routes{
		path:           {http.MethodGet: g.As(page.Answers(list)), http.MethodPost: g.As(begin)},
		path + "/{id}": {http.MethodGet: g.As(show(false)), http.MethodDelete: g.As(show(true))},
	}
}

// begun answers with a job that has begun, and where it is, unless there is an error.
func begun(w http.ResponseWriter, path string, job Job, err error) error {
	if err != nil {
		return err
	}
	w.Header().Set("Location", path+"/"+job.ID)
	return page.AnswerAs(w, http.StatusAccepted, job)
}

// cancels returns the page that cancels the job of a kind that the path names.
func (j *jobs) cancels(kind, path string) people.VisitorHandler {
	return people.Leads(func(r *http.Request, v people.Visitor) (string, error) {
		job, err := j.find(kind, r.PathValue("id"), personOf(v.Principal), true)
		return path + "/" + job.ID, err
	})
}
