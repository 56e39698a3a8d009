package notice

// DialWith makes the channels that are applied from now on reach mail servers by d.
func (s *Sender) DialWith(d dialer) { s.dial = d }

// Times that tests stand at.
const (
	LeaseTime = leaseTTL
	NewsTime  = newsTTL
	DeadTime  = deadTTL
)

// LongestWait is the longest pause between two tries.
var LongestWait = backoff.Longest

// EventOf is what a change is to people.
var EventOf = eventOf

// Render gives what a format makes of the body of a notice.
func Render(f Format, body []byte) ([]byte, error) {
	render, err := renderer(f)
	if err != nil {
		return nil, err
	}
	return render(&notice{body: body})
}

// Sign gives the signature header of a body.
var Sign = signer
