package notice

// DialWith makes the channels that are applied from now on reach mail servers by d.
func (s *Sender) DialWith(d dialer) { s.dial = d }

// Times that tests stand at.
const (
	LeaseTime   = leaseTime
	LongestWait = longestWait
	NewsTime    = newsTime
	DeadTime    = deadTime
)

// Pause is how long a sender waits after so many tries.
var Pause = pause

// EventOf is what a change is to people.
var EventOf = eventOf

// Render gives what a format makes of the body of a notice.
func Render(f Format, body []byte) ([]byte, error) {
	render, err := renderer(f)
	if err != nil {
		return nil, err
	}
	return render(&parcel{body: body})
}

// Sign gives the signature header of a body.
var Sign = signer
