package registry

// OfferOf is offerOf, for tests.
var OfferOf = offerOf
