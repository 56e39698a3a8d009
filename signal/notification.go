package signal

import (
	stdjson "encoding/json"
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
	}{s.whole()}
	return JSONRPCNotification{Method: MethodSignal, Params: encode(params)}
}

// MarshalJSON gives the JSON form on one line; ErrInvalidNotification for one
// without a method or with params that are no JSON object.
func (n JSONRPCNotification) MarshalJSON() ([]byte, error) {
	switch {
	case n.Method == "":
		return nil, fmt.Errorf("%w: no method", ErrInvalidNotification)
	case n.Params != nil && jsontext.Value(n.Params).Kind() != '{':
		return nil, fmt.Errorf("%w: params is no object", ErrInvalidNotification)
	}
	raw, err := json.Marshal(notificationForm{"2.0", n.Method, jsontext.Value(n.Params)}, asItIs, jsontext.AllowDuplicateNames(false))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidNotification, err)
	}
	return raw, nil
}

type notificationForm struct {
	Version string         `json:"jsonrpc"`
	Method  string         `json:"method"`
	Params  jsontext.Value `json:"params,omitzero"`
}
