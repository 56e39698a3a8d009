package signal

import (
	stdjson "encoding/json"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// MethodSignal is the method of the notification that carries a Signal.
const MethodSignal = "notifications/signal"

// JSONRPCNotification is a notification of JSON-RPC 2.0: nobody answers it.
// Its JSON form is {jsonrpc: "2.0", method, params?}. Treat it as immutable:
// then it is safe for concurrent use.
type JSONRPCNotification struct {
	Method string             // not empty
	Params stdjson.RawMessage // a JSON object, nil for none
}

// SignalToNotification makes the bus message of a Signal: method
// "notifications/signal", params {"signal": its JSON form} (seed 002,
// signal_to_notification). It never fails.
func SignalToNotification(s Signal) JSONRPCNotification {
	params := struct {
		Signal *signalForm `json:"signal"`
	}{&s.form}
	return JSONRPCNotification{Method: MethodSignal, Params: encode(params)}
}

// MarshalJSON gives the JSON form on one line; ErrInvalidNotification for one
// without a method or with params that are no JSON object.
func (n JSONRPCNotification) MarshalJSON() ([]byte, error) {
	err := n.check()
	var raw []byte
	if err == nil {
		raw, err = json.Marshal(notificationForm{"2.0", n.Method, jsontext.Value(n.Params)}, asItIs, jsontext.AllowDuplicateNames(false))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidNotification, err)
	}
	return raw, nil
}

func (n JSONRPCNotification) check() error {
	switch {
	case n.Method == "":
		return errors.New("no method")
	case n.Params != nil && jsontext.Value(n.Params).Kind() != '{':
		return errors.New("params is no object")
	}
	return nil
}

type notificationForm struct {
	Version string         `json:"jsonrpc"`
	Method  string         `json:"method"`
	Params  jsontext.Value `json:"params,omitzero"`
}

func (f *notificationForm) notification() (JSONRPCNotification, error) {
	n := JSONRPCNotification{Method: f.Method, Params: stdjson.RawMessage(f.Params)}
	if f.Version != "2.0" {
		return n, errors.New(`jsonrpc is not "2.0"`)
	}
	return n, n.check()
}

// UnmarshalJSON reads the JSON form strictly: a request, with its id, is no
// notification. The error is ErrInvalidNotification.
func (n *JSONRPCNotification) UnmarshalJSON(data []byte) error {
	return read(data, n, ErrInvalidNotification, (*notificationForm).notification)
}
